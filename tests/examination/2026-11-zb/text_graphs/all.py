"""All cases of this part."""

import btg_faults_a  # noqa: F401
import btg_faults_b  # noqa: F401
import btg_sound_a  # noqa: F401
import btg_sound_b  # noqa: F401
