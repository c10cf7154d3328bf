package issuer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/issuers"
)

// summarise says in a status what was observed. It is pure.
func summarise(spec *v1alpha1.IssuerSpec, authorities issuers.Authorities, before v1alpha1.IssuerStatus, generation int64, now time.Time) v1alpha1.IssuerStatus {
	after := v1alpha1.IssuerStatus{ObservedGeneration: generation, Conditions: slices.Clone(before.Conditions)}
	var described, algorithms []string
	for _, a := range authorities.List {
		c := a.Certificate()
		after.Authorities = append(after.Authorities, v1alpha1.Authority{
			SecretName: a.SecretName,
			HSMPool:    a.HSMPool,
			Algorithm:  string(a.Algorithm),
			Subject:    c.Subject.String(),
			NotAfter:   metav1.NewTime(c.NotAfter),
		})
		algorithms = append(algorithms, string(a.Algorithm))
		where := fmt.Sprintf("Secret %q", a.SecretName)
		if a.HSMPool != "" {
			where += fmt.Sprintf(", key in HSMPool %q", a.HSMPool)
		}
		described = append(described, fmt.Sprintf("%s keys with %q (%s, %s, until %s)",
			a.Family, c.Subject, a.Algorithm, where, a.End().UTC().Format(time.RFC3339)))
	}
	after.Algorithms = strings.Join(algorithms, ",")
	state, reason, message := metav1.ConditionTrue, v1alpha1.ReasonReady, "signs "+strings.Join(described, " and ")
	switch {
	case spec.SelfSigned != nil:
		message = "signs each certificate with its own key"
	case len(authorities.Problems) > 0:
		state, reason = metav1.ConditionFalse, authorities.Problems[0].Reason
		var messages []string
		for _, p := range authorities.Problems {
			messages = append(messages, p.Message)
		}
		message = strings.Join(messages, "; ")
	}
	conditions.Set(&after.Conditions, v1alpha1.ConditionReady, state, reason, message, generation, now)
	return after
}
