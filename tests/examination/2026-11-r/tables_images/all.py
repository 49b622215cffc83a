import tir_faults_a  # noqa: F401
import tir_faults_b  # noqa: F401
import tir_sound_a  # noqa: F401
import tir_sound_b  # noqa: F401
