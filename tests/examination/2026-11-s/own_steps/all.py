"""The cases of this part."""

import oss_faults_a  # noqa: F401
import oss_faults_b  # noqa: F401
import oss_sound_a  # noqa: F401
import oss_sound_b  # noqa: F401
