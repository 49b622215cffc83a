"""All cases."""

import zis_faults_a  # noqa: F401
import zis_faults_b  # noqa: F401
import zis_sound_a  # noqa: F401
import zis_sound_b  # noqa: F401
