import vts_faults_tables  # noqa: F401
import vts_faults_science  # noqa: F401
import vts_faults_steps  # noqa: F401
import vts_sound_tables  # noqa: F401
import vts_sound_steps  # noqa: F401
