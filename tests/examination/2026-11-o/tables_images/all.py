"""All cases."""

import tab_images
import tab_pipeline
import tab_sound
import tab_tables
