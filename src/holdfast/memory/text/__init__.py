"""Turn text into search terms: characters, words, dates, stems."""
