package v1alpha1

import "time"

// Defaults of fields that the code reads as well, for objects that no API server
// has filled in. Those in the definitions, which the fields' markers make, are the
// same: TestDefaultsAreThoseOfTheDefinitions.
const (
	// DefaultReplicas of a gateway.
	DefaultReplicas int32 = 2
	// DefaultDrainDelaySeconds and DefaultDrainTimeoutSeconds of a gateway's pods.
	DefaultDrainDelaySeconds, DefaultDrainTimeoutSeconds int32 = 5, 30
	// DefaultTicketLifetime of a gateway's sessions.
	DefaultTicketLifetime = 2 * time.Hour
	// DefaultRedisServers and DefaultSentinels that the Redis Operator is asked for.
	DefaultRedisServers, DefaultSentinels int32 = 3, 3
	// DefaultHSMTimeout of a signature, DefaultHSMSessions of a token that a process
	// has open, and DefaultRemoteHSMSessions that a gateway's pod has with an hsmd.
	DefaultHSMTimeout              = 5 * time.Second
	DefaultHSMSessions       int32 = 4
	DefaultRemoteHSMSessions int32 = 16
	// DefaultTolerance of a comparison with a baseline, in percent.
	DefaultTolerance int32 = 10
	// DefaultSuccessfulHistoryLimit and DefaultFailedHistoryLimit of a schedule.
	DefaultSuccessfulHistoryLimit, DefaultFailedHistoryLimit int32 = 3, 1
)
