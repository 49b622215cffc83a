import yts_sound_odd  # noqa: F401
import yts_sound_plain  # noqa: F401
import yts_faulty_science  # noqa: F401
import yts_faulty_steps  # noqa: F401
import yts_faulty_tables  # noqa: F401
