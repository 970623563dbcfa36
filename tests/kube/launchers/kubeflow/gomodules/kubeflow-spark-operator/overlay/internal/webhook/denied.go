package webhook

// DeniedSparkConfKeys is for the program beside the operator's own.
func DeniedSparkConfKeys() map[string]string { return deniedSparkConfKeys }
