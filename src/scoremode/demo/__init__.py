"""The demo: a tiny trained model, quantized here and measured on text it has not seen."""
