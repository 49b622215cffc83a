import vis_faults_a  # noqa: F401
import vis_faults_b  # noqa: F401
import vis_sound_a  # noqa: F401
import vis_sound_b  # noqa: F401
