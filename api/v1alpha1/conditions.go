package v1alpha1

// Condition types. Every condition carries observedGeneration, a reason from
// the list below and a message that names the object, the field, the value
// found and the remedy.
const (
	// ConditionReady sums the others up: True when the object does what its
	// spec says.
	ConditionReady = "Ready"
	// ConditionAccepted (QTLSGateway): the spec is valid as a whole.
	ConditionAccepted = "Accepted"
	// ConditionResolvedRefs (QTLSGateway, its listeners): every object that the
	// spec names exists and is fit for its use.
	ConditionResolvedRefs = "ResolvedRefs"
	// ConditionProgrammed (QTLSGateway): every ready pod runs this generation.
	ConditionProgrammed = "Programmed"
	// ConditionSessionResumption (QTLSGateway): a client resumes its session on
	// every replica. Handshakes do not depend on it, nor does Ready.
	ConditionSessionResumption = "SessionResumption"
	// ConditionHSM (QTLSGateway): every member of the HSMPool signs for each ready
	// pod. It is there where private keys lie in one. Ready does not depend on it.
	ConditionHSM = "HSM"
	// ConditionIssuing (PQCCertificate): a certificate is being issued.
	ConditionIssuing = "Issuing"
	// ConditionDevelopment (HSMPool): keys are in software. It is not there where
	// none are.
	ConditionDevelopment = "Development"
	// ConditionComplete (QTLSBenchmark): everything is measured and reported.
	ConditionComplete = "Complete"
	// ConditionValid (QTLSBenchmark): each point measures the gateway and nothing
	// else.
	ConditionValid = "Valid"
	// ConditionFailed (QTLSBenchmark): it is over and has not measured everything,
	// for another reason than that it was cancelled. It is not there before.
	ConditionFailed = "Failed"
	// ConditionCompared (QTLSBenchmark): what was measured could be compared with the
	// baseline. It is not there where there is none.
	ConditionCompared = "Compared"
	// ConditionPeersCompared (QTLSBenchmark): the gateway is compared with each of
	// spec.peers, in each of its modes. It is not there where there are none, nor before
	// it is known.
	ConditionPeersCompared = "PeersCompared"
	// ConditionPassed (QTLSBenchmark): every threshold holds, and nothing is worse
	// than the baseline. It is not there where there are neither.
	ConditionPassed = "Passed"
	// ConditionRestored (QTLSBenchmark): the gateway is as it was before.
	ConditionRestored = "Restored"
)

// Condition reasons: the one list that controllers, documentation and tests
// take them from. docs/reference/conditions.md explains each.
const (
	// Of several kinds.
	ReasonReady   = "Ready"
	ReasonPending = "Pending"

	// QTLSGateway: Accepted.
	ReasonAccepted         = "Accepted"
	ReasonInvalid          = "Invalid"
	ReasonPolicyNotFound   = "PolicyNotFound"
	ReasonFallbackNotFound = "FallbackPolicyNotFound"
	// ReasonCertificateAgainstPolicy: the policy (mode Require) accepts none of the
	// listener's certificates, or not the signatures of a chain.
	ReasonCertificateAgainstPolicy = "CertificateAgainstPolicy"

	// QTLSGateway and listeners: ResolvedRefs.
	ReasonResolvedRefs        = "ResolvedRefs"
	ReasonCertificateNotFound = "CertificateNotFound"
	ReasonCertificateNotReady = "CertificateNotReady"
	ReasonCertificateInvalid  = "CertificateInvalid"
	ReasonCertificateExpired  = "CertificateExpired"
	// ReasonCertificateNotYetValid: its time is yet to come.
	ReasonCertificateNotYetValid = "CertificateNotYetValid"
	ReasonKeyMismatch            = "KeyMismatch"
	ReasonAuthorityNotFound      = "AuthorityNotFound"
	ReasonAuthorityInvalid       = "AuthorityInvalid"
	// ReasonAuthorityExpired: none of the authorities is valid at this time.
	ReasonAuthorityExpired    = "AuthorityExpired"
	ReasonBackendNotFound     = "BackendNotFound"
	ReasonBackendPortNotFound = "BackendPortNotFound"
	ReasonBackendNotSupported = "BackendNotSupported"
	ReasonHostnameNotCovered  = "HostnameNotCovered"

	// QTLSGateway: Programmed.
	ReasonProgrammed            = "Programmed"
	ReasonProgressing           = "Progressing"
	ReasonConfigurationRejected = "ConfigurationRejected"
	ReasonCertificateRejected   = "CertificateRejected"
	ReasonAgentUnreachable      = "AgentUnreachable"
	ReasonPodsNotReady          = "PodsNotReady"
	ReasonNoPods                = "NoPods"
	ReasonNotApplied            = "NotApplied"

	// QTLSGateway: SessionResumption.
	ReasonShared          = "Shared"
	ReasonDisabled        = "Disabled"
	ReasonNoTerminatedTLS = "NoTerminatedTLS"
	ReasonStoreInvalid    = "StoreInvalid"
	ReasonStoreNotReady   = "StoreNotReady"
	// ReasonStoreKindNotInstalled: the Redis Operator's kinds are not there.
	ReasonStoreKindNotInstalled = "StoreKindNotInstalled"
	ReasonStoreUnreachable      = "StoreUnreachable"
	ReasonStoreRefusesAccess    = "StoreRefusesAccess"
	ReasonPodsWithKeysOfOwn     = "PodsWithKeysOfTheirOwn"

	// PQCCertificate.
	ReasonIssued             = "Issued"
	ReasonIssuing            = "Issuing"
	ReasonIssuerNotFound     = "IssuerNotFound"
	ReasonIssuerNotReady     = "IssuerNotReady"
	ReasonWaitingForApproval = "WaitingForApproval"
	ReasonDenied             = "Denied"
	ReasonRequestFailed      = "RequestFailed"
	// ReasonAuthorityNotAllowed: the issuer signs no certificate with isCA.
	ReasonAuthorityNotAllowed = "AuthorityNotAllowed"
	ReasonSecretNotOwned      = "SecretNotOwned"
	ReasonCertManagerNotFound = "CertManagerNotFound"
	// ReasonHSMPoolNotFound and those after it: keyStorage, and issuers' keys.
	ReasonHSMPoolNotFound = "HSMPoolNotFound"
	// ReasonHSMNotReady: not enough members of the pool answer.
	ReasonHSMNotReady = "HSMNotReady"
	// ReasonKeyNotFound: no member of the pool has a key.
	ReasonKeyNotFound = "KeyNotFound"
	// ReasonKeyNotInEveryMember: a key is in some members of the pool alone.
	ReasonKeyNotInEveryMember = "KeyNotInEveryMember"
	// ReasonKeyNotProtected: a key could leave its token.
	ReasonKeyNotProtected = "KeyNotProtected"

	// PQCIssuer and PQCClusterIssuer.
	ReasonSecretNotFound = "SecretNotFound"
	ReasonSecretInvalid  = "SecretInvalid"
	ReasonNotAnAuthority = "NotAnAuthority"
	ReasonSameFamily     = "SameFamily"

	// HSMPool and its members, besides SecretNotFound and SecretInvalid.
	// ReasonDegraded: some members can sign, and some cannot.
	ReasonDegraded = "Degraded"
	// ReasonHSMUnreachable: a member's hsmd gives no answer, or is full.
	ReasonHSMUnreachable = "HSMUnreachable"
	// ReasonHSMNotTrusted: its certificate is not one to trust.
	ReasonHSMNotTrusted = "HSMNotTrusted"
	// ReasonHSMRefusesAccess: it does not accept our certificate, or its
	// allow-list does not have its name.
	ReasonHSMRefusesAccess = "HSMRefusesAccess"
	// ReasonHSMProtocol: what is at its address is no hsmd.
	ReasonHSMProtocol   = "HSMProtocol"
	ReasonPINMissing    = "PINMissing"
	ReasonPINWrong      = "PINWrong"
	ReasonPINLocked     = "PINLocked"
	ReasonPINExpired    = "PINExpired"
	ReasonTokenNotFound = "TokenNotFound"
	// ReasonLibraryNotLoaded: a vendor's library cannot be loaded.
	ReasonLibraryNotLoaded = "LibraryNotLoaded"
	// ReasonConfigMapNotFound and ReasonVolumeClaimNotFound: what a library's
	// files name is not there.
	ReasonConfigMapNotFound   = "ConfigMapNotFound"
	ReasonVolumeClaimNotFound = "VolumeClaimNotFound"
	// ReasonDaemonNotReady: the pod of a daemon that the operator runs is not
	// ready.
	ReasonDaemonNotReady = "DaemonNotReady"
	// ReasonSoftToken: a member is a token in software, for development.
	ReasonSoftToken = "SoftToken"
	// ReasonTokenFailed: the token or its library fails for a reason of its own.
	ReasonTokenFailed = "TokenFailed"

	// QTLSBenchmark: Complete, besides Pending and Invalid.
	ReasonCompleted = "Completed"
	ReasonScaling   = "Scaling"
	ReasonMeasuring = "Measuring"
	// ReasonGatewayBusy: another benchmark measures the gateway.
	ReasonGatewayBusy          = "GatewayBusy"
	ReasonGatewayNotFound      = "GatewayNotFound"
	ReasonGatewayChanged       = "GatewayChanged"
	ReasonGatewayNotProgrammed = "GatewayNotProgrammed"
	ReasonPlanTooLong          = "PlanTooLong"
	ReasonDeadlineExceeded     = "DeadlineExceeded"
	ReasonGeneratorFailed      = "GeneratorFailed"
	// ReasonGeneratorUnschedulable: its pods find no node, or are refused.
	ReasonGeneratorUnschedulable = "GeneratorUnschedulable"
	// ReasonNoHandshakes: the first capacities had none.
	ReasonNoHandshakes = "NoHandshakes"
	// ReasonCancelled: spec.cancel.
	ReasonCancelled = "Cancelled"
	// ReasonBaselineNotFound and ReasonBaselineInvalid: spec.baselineRef.
	ReasonBaselineNotFound = "BaselineNotFound"
	ReasonBaselineInvalid  = "BaselineInvalid"
	// ReasonResultUnreadable: a generator ended well, and what it printed is no
	// result.
	ReasonResultUnreadable = "ResultUnreadable"
	// ReasonImageNotAllowed: the operator's settings do not allow the image of a peer.
	ReasonImageNotAllowed = "ImageNotAllowed"

	// QTLSBenchmark: PeersCompared.
	ReasonPeersCompared    = "PeersCompared"
	ReasonPeersNotCompared = "PeersNotCompared"
	// ReasonPeerNotReady: the pods of a peer do not run, or may not, so it is left out.
	ReasonPeerNotReady = "PeerNotReady"

	// QTLSBenchmark: Valid.
	ReasonPointsValid   = "PointsValid"
	ReasonPointsInvalid = "PointsInvalid"

	// QTLSBenchmark: Compared, besides BaselineNotFound and BaselineInvalid.
	ReasonBetter = "Better"
	ReasonSame   = "Same"
	ReasonWorse  = "Worse"
	// ReasonRefused: the baseline is of other machines, quotas or load.
	ReasonRefused = "Refused"
	// ReasonIncomparable: a figure is not there, with an interval, in both, and none of the others is worse.
	ReasonIncomparable = "Incomparable"
	// ReasonUndecided: a figure is worse by more than the tolerance, but not with all of its interval.
	ReasonUndecided = "Undecided"

	// QTLSBenchmark: Passed, besides Worse, Refused, Incomparable and Undecided.
	ReasonThresholdsPassed    = "ThresholdsPassed"
	ReasonThresholdsNotPassed = "ThresholdsNotPassed"
	// ReasonNotWorse: there are no thresholds, and the baseline is not better.
	ReasonNotWorse = "NotWorse"

	// QTLSBenchmarkSchedule: Ready, besides Invalid and NotApplied.
	ReasonScheduled = "Scheduled"
	ReasonSuspended = "Suspended"

	// QTLSBenchmark: Restored.
	ReasonRestored     = "Restored"
	ReasonGatewayInUse = "GatewayInUse"
	// ReasonLeftAsChanged: somebody else has changed the replicas, so they stay.
	ReasonLeftAsChanged = "LeftAsChanged"
)

// Annotations and labels.
const (
	// AnnotationRenew on a PQCCertificate: any new value renews it at once.
	AnnotationRenew = GroupName + "/renew"
	// AnnotationDropTickets on a QTLSGateway: any new value makes every ticket
	// that clients hold worthless at once, as for a key that leaked.
	AnnotationDropTickets = GroupName + "/drop-tickets"
	// AnnotationAlgorithm on a certificate Secret or CertificateRequest: the
	// key's algorithm.
	AnnotationAlgorithm = GroupName + "/algorithm"
	// AnnotationRevision on a certificate Secret or CertificateRequest: counts
	// the certificates issued.
	AnnotationRevision = GroupName + "/revision"
	// AnnotationRequested on a certificate Secret or CertificateRequest: what
	// its PQCCertificate asked for, in JSON.
	AnnotationRequested = GroupName + "/requested"
	// AnnotationAttempt on a CertificateRequest: counts the attempts to have
	// this revision issued, from 1.
	AnnotationAttempt = GroupName + "/attempt"
	// AnnotationPreviousKeys on a certificate Secret: the PKCS #11 URIs of the
	// keys before that are to be destroyed, when each was replaced, and the UID of
	// the PQCCertificate that it was made for, in JSON.
	AnnotationPreviousKeys = GroupName + "/previous-keys"
	// AnnotationRequest on a CertificateRequest: the certificate request of a
	// post-quantum key in PEM form, where spec.request only carries its names
	// and its key's identifier (docs/architecture.md, Certificates).
	AnnotationRequest = GroupName + "/request"
	// LabelGateway on everything that belongs to a gateway: its name.
	LabelGateway = GroupName + "/gateway"
	// LabelCertificate on everything that belongs to a PQCCertificate: its name.
	LabelCertificate = GroupName + "/certificate"
	// LabelHSMPool and LabelHSMMember on everything that belongs to a daemon of
	// an HSMPool: the names of the pool and the member.
	LabelHSMPool   = GroupName + "/hsm-pool"
	LabelHSMMember = GroupName + "/hsm-member"
	// AnnotationBenchmark on a QTLSGateway that a QTLSBenchmark measures: which one
	// it is, and how to put the gateway back, in JSON.
	AnnotationBenchmark = GroupName + "/benchmark"
	// AnnotationMeasurement on a load generator's Job: what it measures.
	AnnotationMeasurement = GroupName + "/measurement"
	// AnnotationUsageIdle, AnnotationUsageQuiet, AnnotationUsageBegin and
	// AnnotationUsageEnd on it: what the gateway's pods had used before its load, just
	// before that (what connected between the two was not the load), when its window
	// began, and just before that ended, in JSON.
	AnnotationUsageIdle  = GroupName + "/usage-idle"
	AnnotationUsageQuiet = GroupName + "/usage-quiet"
	AnnotationUsageBegin = GroupName + "/usage-begin"
	AnnotationUsageEnd   = GroupName + "/usage-end"
	// AnnotationRecord on a ConfigMap with the record of a measurement: which one, and
	// what is to be known of it without reading the record, in JSON.
	AnnotationRecord = GroupName + "/record"
	// LabelTicketStore is on a Secret whose password may be sent to the store of a
	// gateway's tickets, wherever that is.
	LabelTicketStore      = GroupName + "/ticket-store"
	LabelTicketStoreValue = "true"
	// LabelBenchmark on everything that belongs to a QTLSBenchmark: its name.
	LabelBenchmark = GroupName + "/benchmark"
	// LabelPeer on the pods of a server that a QTLSBenchmark compares with: its name.
	LabelPeer = GroupName + "/peer"
	// LabelSchedule on a QTLSBenchmark that a QTLSBenchmarkSchedule has made: its name.
	LabelSchedule = GroupName + "/benchmark-schedule"
	// AnnotationScheduledAt on it: the time of the schedule that it was made for.
	AnnotationScheduledAt = GroupName + "/scheduled-at"
	// LabelManagedBy and its value mark what the operator made.
	LabelManagedBy      = "app.kubernetes.io/managed-by"
	LabelManagedByValue = "qtls-operator"
	// FieldManager of the operator's server-side apply.
	FieldManager = "qtls-operator"
)
