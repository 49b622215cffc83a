import faults_losses  # noqa
import faults_layers  # noqa
import faults_training  # noqa
import sound_unusual  # noqa
import sound_ordinary  # noqa
