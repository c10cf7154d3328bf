package hsmpool

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
)

// summarise says in a status what was observed. It is pure.
func summarise(pool *v1alpha1.HSMPool, observations []hsmpool.Observation, now time.Time) v1alpha1.HSMPoolStatus {
	after := v1alpha1.HSMPoolStatus{ObservedGeneration: pool.Generation, Conditions: slices.Clone(pool.Status.Conditions)}
	up, reason := 0, ""
	var messages []string
	for _, o := range observations {
		m := memberStatus(o, pool.Status.Members, now)
		after.Members = append(after.Members, m)
		switch {
		case m.State == v1alpha1.HSMMemberUp:
			up++
		case reason == "":
			reason = m.Reason
		}
		if m.Message != "" {
			messages = append(messages, m.Message)
		}
	}
	after.Up = fmt.Sprintf("%d/%d", up, len(observations))
	state := metav1.ConditionTrue
	switch {
	case up == len(observations):
		reason, messages = v1alpha1.ReasonReady, slices.Insert(messages, 0, fmt.Sprintf("each of %d members can sign", up))
	case up > 0:
		reason, messages = v1alpha1.ReasonDegraded, slices.Insert(messages, 0, fmt.Sprintf("%d of %d members can sign", up, len(observations)))
	default:
		state = metav1.ConditionFalse
	}
	conditions.Set(&after.Conditions, v1alpha1.ConditionReady, state, reason, strings.Join(messages, "; "), pool.Generation, now)
	markDevelopment(pool, &after.Conditions, now)
	return after
}

// markDevelopment says which members are no HSMs.
func markDevelopment(pool *v1alpha1.HSMPool, list *[]metav1.Condition, now time.Time) {
	var soft []string
	for _, m := range pool.Spec.Members {
		if m.SoftToken != nil {
			soft = append(soft, fmt.Sprintf("%q", m.Name))
		}
	}
	if len(soft) == 0 {
		meta.RemoveStatusCondition(list, v1alpha1.ConditionDevelopment)
		return
	}
	conditions.Set(list, v1alpha1.ConditionDevelopment, metav1.ConditionTrue, v1alpha1.ReasonSoftToken,
		fmt.Sprintf("not for production: of member %s the keys are in software, for development and tests", strings.Join(soft, ", ")), pool.Generation, now)
}

// mostOfMessage is the greatest length of a member's message and last error, in
// bytes: a pool may have 16 members.
const mostOfMessage = 1024

func memberStatus(o hsmpool.Observation, before []v1alpha1.HSMMemberStatus, now time.Time) v1alpha1.HSMMemberStatus {
	m := v1alpha1.HSMMemberStatus{
		Name: o.Member, State: o.State, Since: metav1.NewTime(now.Truncate(time.Second)),
		Token: o.Status.Token, Sessions: o.Status.Sessions, Signatures: o.Status.Signatures, Failures: o.Status.Failures,
		LastError: conditions.Shorten(o.Status.LastError, mostOfMessage),
	}
	if l := o.Status.Latency; l.P50 > 0 {
		m.Latency = &v1alpha1.SignatureLatency{P50: micros(l.P50), P99: micros(l.P99)}
	}
	if o.Problem != nil {
		m.Reason, m.Message = o.Problem.Reason, conditions.Shorten(o.Problem.Message, mostOfMessage)
	}
	for _, b := range before {
		if b.Name == m.Name && b.State == m.State {
			m.Since = b.Since
		}
	}
	return m
}

func micros(n int64) metav1.Duration {
	return metav1.Duration{Duration: time.Duration(n) * time.Microsecond}
}
