package notary

// SignCheckpoint returns the signed note of a checkpoint.
var SignCheckpoint = Checkpoint.sign
