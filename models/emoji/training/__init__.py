"""How the emoji model is made, one command a stage, in this order:

    python -m models.emoji.training.prepare        pictures and names        (CPU, 1 minute)
    python -m models.emoji.training.vocabulary     the two tokenizers        (CPU, seconds)
    python -m models.emoji.training.autoencoder    pixels <-> latents        (GPU, minutes)
    python -m models.emoji.training.latents        the latent cache          (GPU, seconds)
    python -m models.emoji.training.denoiser       text -> latents           (GPU, minutes)
    python -m models.emoji.training.export         the pipeline folder       (CPU, seconds)
    python -m models.emoji.training.adapter        the pixel-art LoRA        (GPU, a minute)
    python -m models.emoji.training.reference_set  the retrieval atlas       (CPU, seconds)
    python -m models.emoji.training.evaluate       recall, style, background (CPU, minutes)
    python -m models.emoji.training.compositions   places, mirroring, pairs  (CPU, minutes)
    python -m models.emoji.training.grid           the picture of the README (CPU, a minute)
    python -m models.emoji.training.adapter_report how much pixel art        (CPU, minutes)
    python -m models.emoji.training.timing         seconds a picture         (CPU, seconds)

Every stage reads and writes one work folder (``--work``), says what it needs when run with
``--help``, and the two long ones continue from their last checkpoint.
"""
