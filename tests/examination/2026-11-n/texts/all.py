import texts_faults_a  # noqa: F401
import texts_faults_b  # noqa: F401
import texts_faults_c  # noqa: F401
import texts_sound_a  # noqa: F401
import texts_sound_b  # noqa: F401
