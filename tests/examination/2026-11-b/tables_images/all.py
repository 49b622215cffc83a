import faults_tables  # noqa: F401
import faults_images  # noqa: F401
import sound_tables  # noqa: F401
import sound_images  # noqa: F401
