"""All cases."""

import wis_faults_generative  # noqa: F401
import wis_faults_images  # noqa: F401
import wis_faults_signals  # noqa: F401
import wis_sound_odd  # noqa: F401
import wis_sound_plain  # noqa: F401
