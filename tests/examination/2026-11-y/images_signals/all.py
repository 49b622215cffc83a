"""All cases."""

import yis_faults_a  # noqa: F401
import yis_faults_b  # noqa: F401
import yis_sound_a  # noqa: F401
import yis_sound_b  # noqa: F401
