import utg_faults_a  # noqa: F401
import utg_faults_b  # noqa: F401
import utg_sound_a  # noqa: F401
import utg_sound_b  # noqa: F401
