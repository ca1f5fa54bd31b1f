"""Gates: what a checkpoint must pass before anybody may use it.

judging      the verdict: all gates over all components of a build
services     a planner and a worker of its own, as processes, and calls to them
asking       what is asked of them: the dense model, and the same with the checkpoints
pictures     pairs of pictures through them: the dense model's and the checkpoint's, seed for seed
figures      how alike two pictures are
perceptual   LPIPS and CLIP, in a process that has torch, where their weights are at hand
sheet        the contact sheet that a person looks at
report       the verdict as file and as message

The first gate, that every tensor is what the runtime makes, is in `making/identity.py`: it needs torch.
"""
