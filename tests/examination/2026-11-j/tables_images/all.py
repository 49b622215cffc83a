import faults_images  # noqa: F401
import faults_tables  # noqa: F401
import faults_more  # noqa: F401
import sound_ordinary  # noqa: F401
import sound_images  # noqa: F401
import sound_tables  # noqa: F401
