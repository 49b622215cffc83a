"""All cases."""

import ais_faults_a  # noqa: F401
import ais_faults_b  # noqa: F401
import ais_sound_a  # noqa: F401
import ais_sound_b  # noqa: F401
