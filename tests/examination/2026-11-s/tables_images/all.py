"""All cases of this part."""
import tis_faults_a  # noqa: F401
import tis_faults_b  # noqa: F401
import tis_sound_a  # noqa: F401
import tis_sound_b  # noqa: F401
