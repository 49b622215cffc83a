import own_faults_a  # noqa: F401
import own_faults_b  # noqa: F401
import own_faults_c  # noqa: F401
import own_sound_a  # noqa: F401
import own_sound_b  # noqa: F401
import own_sound_c  # noqa: F401
