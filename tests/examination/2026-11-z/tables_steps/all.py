"""All cases of this part."""

import zts_faults_a
import zts_faults_b
import zts_sound_a
import zts_sound_b  # noqa: F401
