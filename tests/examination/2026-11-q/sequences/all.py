import sqq_lang
import sqq_signal
import sqq_setup
import sqq_fine_lang
import sqq_fine_signal
