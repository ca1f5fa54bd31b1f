"""Publishing: a checkpoint that has passed its gates, on the Hub.

card      the model card, written from the manifest and the verdict
hub       the upload: what is there already is left alone, what differs is refused
"""
