package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/mtls"
	"qtls.dev/qtls/internal/observe"
	"qtls.dev/qtls/internal/resolve"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/rollout"
)

// verdict is what a condition says: ok means True.
type verdict struct {
	ok      bool
	reason  string
	message string
}

func (v verdict) status() metav1.ConditionStatus {
	if v.ok {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// summarise says in a status what was observed. It is pure.
func summarise(in inputs, p plan, applyErr error, now time.Time) v1alpha1.QTLSGatewayStatus {
	g := in.Gateway
	status := v1alpha1.QTLSGatewayStatus{
		ObservedGeneration: g.Generation,
		Conditions:         slices.Clone(g.Status.Conditions),
		Selector:           labels.SelectorFromSet(resources.Selector(g.Name)).String(),
		Revision:           p.Assignment.Stable.Revision,
		Policy:             fmt.Sprintf("%s (%s)", g.Spec.PolicyRef.Name, g.Spec.PolicyRef.Mode),
		Addresses:          addresses(in.Service),
	}
	unheard := int32(0) // pods whose agents have had no time to answer
	for _, pod := range in.Observed {
		if pod.Terminating {
			continue
		}
		status.Replicas++
		if pod.Ready && p.Published() && pod.Runs(p.Assignment.For(pod.Name)) && !p.Held {
			status.ReadyReplicas++
		} else if pod.Ready && p.Held && pod.Status != nil {
			status.ReadyReplicas++ // it serves the last good configuration
		} else if pod.Ready && errors.Is(in.Unknown[pod.Name], observe.ErrNotYet) {
			unheard++
		}
	}
	if asBefore(in, p) {
		status.ReadyReplicas += min(unheard, max(g.Status.ReadyReplicas-status.ReadyReplicas, 0))
	}
	status.Pods = fmt.Sprintf("%d/%d", status.ReadyReplicas, resources.Replicas(g))
	status.Certificates = served(in, p)
	status.CertificateAlgorithms = algorithmsOf(status.Certificates)
	status.Listeners = listeners(in, g.Status.Listeners, now)

	accepted := verdictOf(in.Problems, v1alpha1.ConditionAccepted, verdict{true, v1alpha1.ReasonAccepted, "the spec is valid"})
	resolved := verdictOf(in.Problems, v1alpha1.ConditionResolvedRefs, verdict{true, v1alpha1.ReasonResolvedRefs, "every reference exists and is fit for its use"})
	programmed := programmed(in, p, applyErr, now)
	ready := verdict{true, v1alpha1.ReasonReady, fmt.Sprintf("%s pods serve generation %d", status.Pods, g.Generation)}
	if in.Service != nil && in.Service.Spec.Type == corev1.ServiceTypeLoadBalancer && len(status.Addresses) == 0 {
		ready.message += fmt.Sprintf("; Service %q has no address of a load balancer yet: who is outside of the cluster does not reach them", in.Service.Name)
	}
	for _, v := range []verdict{accepted, resolved, programmed} {
		if !v.ok {
			ready = v
			break
		}
	}
	if ready.ok && status.ReadyReplicas < resources.Replicas(g) {
		ready = verdict{false, v1alpha1.ReasonPodsNotReady, fmt.Sprintf("%s pods are ready: %s", status.Pods, unready(in))}
	}
	for _, c := range []struct {
		kind string
		v    verdict
	}{
		{v1alpha1.ConditionAccepted, accepted},
		{v1alpha1.ConditionResolvedRefs, resolved},
		{v1alpha1.ConditionProgrammed, programmed},
		{v1alpha1.ConditionSessionResumption, resumed(in, p)},
		{v1alpha1.ConditionReady, ready},
	} {
		conditions.Set(&status.Conditions, c.kind, c.v.status(), c.v.reason, c.v.message, g.Generation, now)
	}
	if v, ok := signing(in, p); ok {
		conditions.Set(&status.Conditions, v1alpha1.ConditionHSM, v.status(), v.reason, v.message, g.Generation, now)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionHSM)
	}
	return status
}

// undecided says in a status why nothing is done about the gateway. What else was
// observed of it stays. It is pure.
func undecided(g *v1alpha1.QTLSGateway, err error, now time.Time) v1alpha1.QTLSGatewayStatus {
	status := *g.Status.DeepCopy()
	status.ObservedGeneration = g.Generation
	for _, kind := range []string{v1alpha1.ConditionProgrammed, v1alpha1.ConditionReady} {
		conditions.Set(&status.Conditions, kind, metav1.ConditionFalse, v1alpha1.ReasonNotApplied,
			fmt.Sprintf("nothing new is written for the gateway, and what was is served on: %v", err), g.Generation, now)
	}
	return status
}

// verdictOf joins the problems of one condition: the reason is the first's,
// those that hold the configuration before those that do not.
func verdictOf(problems []resolve.Problem, condition string, fine verdict) verdict {
	var mine []resolve.Problem
	for _, p := range problems {
		if p.Condition == condition {
			mine = append(mine, p)
		}
	}
	if len(mine) == 0 {
		return fine
	}
	slices.SortStableFunc(mine, func(a, b resolve.Problem) int { return cmp.Compare(rank(a), rank(b)) })
	var messages []string
	for _, p := range mine {
		if !slices.Contains(messages, p.Message) {
			messages = append(messages, p.Message)
		}
	}
	return verdict{false, mine[0].Reason, strings.Join(messages, "; ")}
}

func rank(p resolve.Problem) int {
	switch {
	case p.Fatal:
		return 0
	case p.Holds:
		return 1
	}
	return 2
}

// programmed says whether every ready pod runs what the spec stands for.
func programmed(in inputs, p plan, applyErr error, now time.Time) verdict {
	g := in.Gateway
	switch {
	case applyErr != nil:
		return verdict{false, v1alpha1.ReasonNotApplied, oneLine(applyErr)}
	case p.Held:
		keeps := "is served on"
		if !slices.ContainsFunc(in.Observed, func(pod rollout.Pod) bool { return pod.Ready && !pod.Terminating }) {
			keeps = "is kept, but no pod is ready: " + unready(in)
			if resources.Replicas(g) == 0 {
				keeps = "is kept; spec.replicas is 0"
			}
		}
		stable := p.Assignment.Stable.Generation
		if stable == g.Generation {
			return verdict{false, v1alpha1.ReasonPending, fmt.Sprintf("nothing new is served, of any listener, while a reference or field is wrong (see the other conditions); the configuration of generation %d, as it was published last, %s", stable, keeps)}
		}
		return verdict{false, v1alpha1.ReasonPending, fmt.Sprintf("generation %d is not served, of any listener, while a reference or field is wrong (see the other conditions); generation %d, the last good one, %s",
			g.Generation, stable, keeps)}
	case !p.Published():
		return verdict{false, v1alpha1.ReasonPending, "there is nothing to serve yet (see the other conditions)"}
	case p.Rejection != nil:
		keeps := "the last good configuration is served on"
		if p.Assignment.Candidate == nil {
			keeps = "there is no earlier configuration to serve"
		}
		return verdict{false, v1alpha1.ReasonConfigurationRejected, fmt.Sprintf("HAProxy refuses the configuration of generation %d, and %s: %s",
			p.Rejection.Target.Generation, keeps, p.Rejection.Message)}
	case resources.Replicas(g) == 0:
		return verdict{false, v1alpha1.ReasonNoPods, "spec.replicas is 0: nothing is served; set it to 1 or more"}
	case p.Assignment.Candidate != nil:
		return onTrial(in, p, now)
	}

	ready := 0
	var behind, unknown, unheard, refused []string
	for _, pod := range in.Observed {
		if !pod.Ready || pod.Terminating {
			continue
		}
		ready++
		if errors.Is(in.Unknown[pod.Name], observe.ErrNotYet) {
			unheard = append(unheard, fmt.Sprintf("pod %s: %v", pod.Name, in.Unknown[pod.Name]))
			continue
		}
		if pod.Status == nil {
			unknown = append(unknown, fmt.Sprintf("pod %s: %v", pod.Name, in.Unknown[pod.Name]))
			continue
		}
		if !pod.Runs(p.Assignment.Stable) {
			behind = append(behind, fmt.Sprintf("pod %s runs generation %d", pod.Name, pod.Status.Running.Generation))
		}
		for _, refusal := range refusals(pod) {
			refused = append(refused, fmt.Sprintf("pod %s serves on the former certificate of %s", pod.Name, refusal))
		}
	}
	switch {
	case ready == 0:
		return verdict{false, v1alpha1.ReasonPodsNotReady, "no pod is ready: " + unready(in)}
	case len(unknown) > 0:
		return verdict{false, v1alpha1.ReasonAgentUnreachable, fmt.Sprintf("the agents of these pods do not answer the operator on port %d (a NetworkPolicy?): %s", mtls.StatusPort, strings.Join(unknown, "; "))}
	case len(behind) > 0:
		return verdict{false, v1alpha1.ReasonProgressing, fmt.Sprintf("generation %d is on its way: %s", g.Generation, strings.Join(behind, "; "))}
	case len(refused) > 0:
		return verdict{false, v1alpha1.ReasonCertificateRejected, strings.Join(refused, "; ")}
	case len(unheard) > 0:
		if former, ok := formerly(in, p); ok {
			return former
		}
		return verdict{false, v1alpha1.ReasonProgressing, fmt.Sprintf("generation %d is on its way: %s", g.Generation, strings.Join(unheard, "; "))}
	}
	return verdict{true, v1alpha1.ReasonProgrammed, fmt.Sprintf("all %d ready pods run generation %d", ready, g.Generation)}
}

// asBefore says that what pods are to serve is what the last status was about. Of
// agents that have had no time to answer, that is believed: an operator that has just
// started has yet to ask them all, and nothing says that anything has changed.
func asBefore(in inputs, p plan) bool {
	status := in.Gateway.Status
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
	return c != nil && c.ObservedGeneration == in.Gateway.Generation && p.Assignment.Candidate == nil && status.Revision == p.Assignment.Stable.Revision
}

// formerly is what the last status said of the agents, if it is to be believed.
func formerly(in inputs, p plan) (verdict, bool) {
	if asBefore(in, p) {
		switch c := meta.FindStatusCondition(in.Gateway.Status.Conditions, v1alpha1.ConditionProgrammed); c.Reason {
		case v1alpha1.ReasonProgrammed, v1alpha1.ReasonCertificateRejected, v1alpha1.ReasonAgentUnreachable:
			return verdict{c.Status == metav1.ConditionTrue, c.Reason, c.Message}, true
		}
	}
	return verdict{}, false
}

// trialPatience is how long the pod that tries a configuration may be not ready
// before that is what is told.
const trialPatience = time.Minute

// onTrial says how far the pod is that tries a configuration first. No other takes
// its place while it is there, for it may be that very configuration that it fails
// by: what keeps it has to be told.
func onTrial(in inputs, p plan, now time.Time) verdict {
	name := p.Assignment.CandidatePod
	tries := fmt.Sprintf("pod %s tries the configuration of generation %d first", name, in.Gateway.Generation)
	const remedy = "; other pods keep the former one, and another tries this when the pod is deleted"
	i := slices.IndexFunc(in.Observed, func(pod rollout.Pod) bool { return pod.Name == name })
	if i < 0 {
		return verdict{false, v1alpha1.ReasonProgressing, tries}
	}
	observed, unknown := in.Observed[i], in.Unknown[name]
	switch since, ready := resources.ReadySince(&in.Pods[i]); {
	case !ready && !since.IsZero() && now.Sub(since) >= trialPatience:
		return verdict{false, v1alpha1.ReasonPodsNotReady, fmt.Sprintf("%s, and is not ready: %s%s", tries, podWaitsFor(in.Pods[i], observed), remedy)}
	case ready && unknown != nil && !errors.Is(unknown, observe.ErrNotYet):
		return verdict{false, v1alpha1.ReasonAgentUnreachable, fmt.Sprintf("%s, and its agent does not answer the operator on port %d (a NetworkPolicy?): %v%s", tries, mtls.StatusPort, unknown, remedy)}
	case len(refusals(observed)) > 0:
		return verdict{false, v1alpha1.ReasonCertificateRejected, fmt.Sprintf("%s, and does not take %s%s", tries, strings.Join(refusals(observed), "; "), remedy)}
	case observed.Status != nil && observed.Status.Waiting != "":
		return verdict{false, v1alpha1.ReasonProgressing, fmt.Sprintf("%s: %s", tries, observed.Status.Waiting)}
	}
	return verdict{false, v1alpha1.ReasonProgressing, tries}
}

// refusals of Secrets' present content that a pod tells of.
func refusals(pod rollout.Pod) []string {
	if pod.Status == nil {
		return nil
	}
	var all []string
	for _, c := range pod.Status.Certificates {
		if c.Error != "" {
			all = append(all, fmt.Sprintf("Secret %q: %s", c.Secret, c.Error))
		}
	}
	return all
}

// unready says what the pods that are not ready wait for.
func unready(in inputs) string {
	var reasons []string
	for i, pod := range in.Pods {
		if in.Observed[i].Ready || in.Observed[i].Terminating {
			continue
		}
		reasons = append(reasons, fmt.Sprintf("pod %s: %s", pod.Name, podWaitsFor(pod, in.Observed[i])))
	}
	if len(reasons) == 0 {
		return "pods are being created"
	}
	return strings.Join(reasons, "; ")
}

func podWaitsFor(pod corev1.Pod, observed rollout.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	if s := observed.Status; s != nil {
		if s.Rejected != nil {
			return s.Rejected.Message
		}
		if refused := refusals(observed); len(refused) > 0 {
			return refused[0]
		}
		if s.Waiting != "" {
			return s.Waiting
		}
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range statuses {
			if w := c.State.Waiting; w != nil && w.Reason != "PodInitializing" {
				return strings.TrimSuffix(fmt.Sprintf("container %s: %s: %s", c.Name, w.Reason, w.Message), ": ")
			}
			if t := c.LastTerminationState.Terminated; t != nil && !c.Ready {
				return fmt.Sprintf("container %s ended with %s (exit code %d)", c.Name, t.Reason, t.ExitCode)
			}
		}
	}
	return "starting"
}

// served are the certificates of the published revision.
func served(in inputs, p plan) []v1alpha1.ServedCertificate {
	bySecret := map[string]v1alpha1.ServedCertificate{}
	stable := p.Assignment.Stable.Revision
	for _, c := range p.Revisions[stable].Certificates {
		if s, ok := servedOn(in, stable, c); ok {
			bySecret[c.Secret] = s
		}
	}
	return slices.SortedFunc(maps.Values(bySecret), func(a, b v1alpha1.ServedCertificate) int { return cmp.Compare(a.SecretName, b.SecretName) })
}

// servedOn is a certificate of a published revision as the pods serve it that run
// this: of several, as where some refuse the Secret's present one, that which
// expires first. Where no pod tells, it is what the Secret has, or what was before.
func servedOn(in inputs, revision string, c dataplane.Certificate) (v1alpha1.ServedCertificate, bool) {
	s := v1alpha1.ServedCertificate{SecretName: c.Secret, Algorithm: c.Algorithm}
	for _, pod := range in.Observed {
		if pod.Terminating || pod.Status == nil || pod.Status.Running.Revision != revision {
			continue
		}
		for _, has := range pod.Status.Certificates {
			end := metav1.Unix(has.NotAfter.Unix(), 0)
			if has.Name == c.Name && has.SerialNumber != "" && (s.SerialNumber == "" || end.Before(&s.NotAfter)) {
				s.SerialNumber, s.NotAfter = has.SerialNumber, end
			}
		}
	}
	if s.SerialNumber != "" {
		return s, true
	}
	if pair, ok := stored(in, c); ok {
		s.SerialNumber, s.NotAfter = pair.SerialNumber(), metav1.Unix(pair.Chain[0].NotAfter.Unix(), 0)
		return s, true
	}
	for _, before := range in.Gateway.Status.Certificates {
		if before.SecretName == c.Secret && before.Algorithm == c.Algorithm {
			return before, true
		}
	}
	return s, false
}

// algorithmsOf certificates, the strongest first.
func algorithmsOf(certificates []v1alpha1.ServedCertificate) string {
	var names []string
	for _, c := range certificates {
		names = append(names, c.Algorithm)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(algorithms.Strength(v1alpha1.KeyAlgorithm(b)), algorithms.Strength(v1alpha1.KeyAlgorithm(a))), cmp.Compare(a, b))
	})
	return strings.Join(slices.Compact(names), ",")
}

func listeners(in inputs, before []v1alpha1.ListenerStatus, now time.Time) []v1alpha1.ListenerStatus {
	var out []v1alpha1.ListenerStatus
	for _, l := range in.Gateway.Spec.Listeners {
		s := v1alpha1.ListenerStatus{Name: l.Name}
		for _, old := range before {
			if old.Name == l.Name {
				s.Conditions = slices.Clone(old.Conditions)
			}
		}
		for _, b := range l.Backends {
			s.Endpoints += int32(len(in.Endpoints[resolve.GroupName(b)]))
		}
		var mine []resolve.Problem
		for _, p := range in.Problems {
			if p.Listener == l.Name {
				p.Condition = v1alpha1.ConditionResolvedRefs
				mine = append(mine, p)
			}
		}
		v := verdictOf(mine, v1alpha1.ConditionResolvedRefs, verdict{true, v1alpha1.ReasonResolvedRefs, "every reference exists and is fit for its use"})
		conditions.Set(&s.Conditions, v1alpha1.ConditionResolvedRefs, v.status(), v.reason, v.message, in.Gateway.Generation, now)
		out = append(out, s)
	}
	return out
}

func addresses(s *corev1.Service) []v1alpha1.GatewayAddress {
	if s == nil {
		return nil
	}
	var out []v1alpha1.GatewayAddress
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IP != "" {
			out = append(out, v1alpha1.GatewayAddress{Type: "IPAddress", Value: i.IP})
		}
		if i.Hostname != "" {
			out = append(out, v1alpha1.GatewayAddress{Type: "Hostname", Value: i.Hostname})
		}
	}
	if len(out) == 0 && s.Spec.Type != corev1.ServiceTypeLoadBalancer && s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone {
		out = append(out, v1alpha1.GatewayAddress{Type: "IPAddress", Value: s.Spec.ClusterIP})
	}
	return out[:min(len(out), 16)]
}

func equalStatus(a, b v1alpha1.QTLSGatewayStatus) bool { return reflect.DeepEqual(a, b) }

// changedConditions are those whose status or reason is not what it was.
func changedConditions(before, after []metav1.Condition) []metav1.Condition {
	var changed []metav1.Condition
	for _, c := range after {
		if old := meta.FindStatusCondition(before, c.Type); old == nil || old.Status != c.Status || old.Reason != c.Reason {
			changed = append(changed, c)
		}
	}
	return changed
}
