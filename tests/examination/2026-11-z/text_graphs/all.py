import ztg_faults_a  # noqa: F401
import ztg_faults_b  # noqa: F401
import ztg_faults_c  # noqa: F401
import ztg_sound_a  # noqa: F401
import ztg_sound_b  # noqa: F401
