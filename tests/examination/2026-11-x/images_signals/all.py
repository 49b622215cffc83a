import xis_faults_generative  # noqa: F401
import xis_faults_images  # noqa: F401
import xis_faults_signals  # noqa: F401
import xis_sound  # noqa: F401
