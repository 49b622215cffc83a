import texts_classify, texts_language, texts_series, texts_sound, texts_sound_series  # noqa
