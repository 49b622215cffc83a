import faults_a  # noqa: F401
import faults_b  # noqa: F401
import faults_c  # noqa: F401
import sound_a  # noqa: F401
import sound_b  # noqa: F401
