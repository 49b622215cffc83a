"""All cases of this part."""

import ti_faults_a  # noqa: F401
import ti_faults_b  # noqa: F401
import ti_faults_c  # noqa: F401
import ti_sound_a  # noqa: F401
import ti_sound_b  # noqa: F401
