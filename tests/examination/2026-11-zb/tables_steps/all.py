"""All cases of this part."""

import bts_faults_a  # noqa: F401
import bts_faults_b  # noqa: F401
import bts_sound_a  # noqa: F401
import bts_sound_b  # noqa: F401
