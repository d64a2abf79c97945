class FaceTrack: pass
