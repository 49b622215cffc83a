import ti_f_tables, ti_f_images, ti_f_training  # noqa: E401, F401
import ti_s_ordinary, ti_s_unusual, ti_s_tuned  # noqa: E401, F401
