import tti_faults_tables  # noqa: F401
import tti_faults_images  # noqa: F401
import tti_sound_tables  # noqa: F401
import tti_sound_images  # noqa: F401
