"""All cases of this part."""

import bis_faults_a  # noqa: F401
import bis_faults_b  # noqa: F401
import bis_sound_a  # noqa: F401
import bis_sound_b  # noqa: F401
