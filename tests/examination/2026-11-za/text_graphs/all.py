"""All cases."""

import atg_faults_a  # noqa: F401
import atg_faults_b  # noqa: F401
import atg_sound_a  # noqa: F401
import atg_sound_b  # noqa: F401
