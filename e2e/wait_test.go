//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
)

const pollEvery = 100 * time.Millisecond

// eventually waits until look says that it is so, and fails the test with what look said last when it never is.
func eventually(t *testing.T, within time.Duration, what string, look func(context.Context) (so bool, state string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if state := poll(ctx, look); state != "" {
		t.Fatalf("%s: not within %s; last: %s", what, within, state)
	}
}

// poll returns "" once look says that it is so, and what it said last when ctx ends first.
func poll(ctx context.Context, look func(context.Context) (bool, string)) string {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	last := "nothing seen"
	for {
		so, state := look(ctx)
		if so {
			return ""
		}
		if ctx.Err() != nil {
			return last
		}
		last = state
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return last
		}
	}
}

// get reads an object anew; the state says why it could not.
func get(ctx context.Context, o client.Object) (bool, string) {
	if err := cluster.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return false, err.Error()
	}
	return true, ""
}

// condition finds a condition of this generation of an object.
func condition(o client.Object, kind string) *metav1.Condition {
	all := conditions(o)
	for i := range all {
		if all[i].Type == kind && all[i].ObservedGeneration == o.GetGeneration() {
			return &all[i]
		}
	}
	return nil
}

func conditions(o client.Object) []metav1.Condition {
	switch o := o.(type) {
	case *v1alpha1.QTLSGateway:
		return o.Status.Conditions
	case *v1alpha1.PQCCertificate:
		return o.Status.Conditions
	case *v1alpha1.PQCIssuer:
		return o.Status.Conditions
	case *v1alpha1.PQCClusterIssuer:
		return o.Status.Conditions
	case *v1alpha1.HSMPool:
		return o.Status.Conditions
	case *v1alpha1.QTLSBenchmark:
		return o.Status.Conditions
	}
	panic(fmt.Sprintf("%T has no conditions", o))
}

func describe(o client.Object) string {
	lines := []string{fmt.Sprintf("%s, generation %d:", o.GetName(), o.GetGeneration())}
	for _, c := range conditions(o) {
		lines = append(lines, fmt.Sprintf("  %s=%s %s (generation %d): %s", c.Type, c.Status, c.Reason, c.ObservedGeneration, c.Message))
	}
	return strings.Join(lines, "\n")
}

// waitReady waits until the object does what its present spec says.
func waitReady(t *testing.T, o client.Object, within time.Duration) {
	t.Helper()
	eventually(t, within, fmt.Sprintf("%T %s is ready", o, o.GetName()), func(ctx context.Context) (bool, string) {
		if ok, state := get(ctx, o); !ok {
			return false, state
		}
		c := condition(o, v1alpha1.ConditionReady)
		return c != nil && c.Status == metav1.ConditionTrue, describe(o)
	})
}

// waitCondition waits for a condition with a status and reason and returns its message.
func waitCondition(t *testing.T, o client.Object, kind string, status metav1.ConditionStatus, reason string, within time.Duration) string {
	t.Helper()
	var message string
	eventually(t, within, fmt.Sprintf("%T %s has %s=%s for reason %s", o, o.GetName(), kind, status, reason), func(ctx context.Context) (bool, string) {
		if ok, state := get(ctx, o); !ok {
			return false, state
		}
		c := condition(o, kind)
		if c == nil || c.Status != status || c.Reason != reason {
			return false, describe(o)
		}
		message = c.Message
		return true, ""
	})
	return message
}

// waitEvents waits until events of an object have these reasons.
func (n namespace) waitEvents(kind, name string, reasons ...string) {
	n.Helper()
	eventually(n.T, forChange, fmt.Sprintf("events of %s %s tell %q", kind, name, reasons), func(ctx context.Context) (bool, string) {
		var events eventsv1.EventList
		if err := cluster.List(ctx, &events, client.InNamespace(n.name)); err != nil {
			return false, err.Error()
		}
		var told []string
		for _, e := range events.Items {
			if e.Regarding.Kind == kind && e.Regarding.Name == name {
				told = append(told, e.Reason)
			}
		}
		for _, reason := range reasons {
			if !slices.Contains(told, reason) {
				return false, fmt.Sprintf("told are %q", told)
			}
		}
		return true, ""
	})
}

// tells fails the test when a message lacks one of the words that a user needs.
func tells(t *testing.T, message string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(message, word) {
			t.Errorf("the message does not name %q: %s", word, message)
		}
	}
}
