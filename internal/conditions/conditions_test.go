package conditions

import (
	"errors"
	"fmt"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTransitionTimeChangesWithStatusOnly(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	var list []metav1.Condition
	Set(&list, "Ready", metav1.ConditionFalse, "Pending", "a", 1, start)
	Set(&list, "Ready", metav1.ConditionFalse, "Issuing", "b", 2, start.Add(time.Minute))
	if c := list[0]; !c.LastTransitionTime.Time.Equal(start) || c.Reason != "Issuing" || c.Message != "b" || c.ObservedGeneration != 2 {
		t.Errorf("after a change of the reason: %+v", c)
	}
	Set(&list, "Ready", metav1.ConditionTrue, "Ready", "c", 2, start.Add(2*time.Minute))
	if c := list[0]; !c.LastTransitionTime.Time.Equal(start.Add(2 * time.Minute)) {
		t.Errorf("after a change of the status: %+v", c)
	}
	if len(list) != 1 {
		t.Errorf("%d conditions of one type", len(list))
	}
}

func TestShortenKeepsRunesWhole(t *testing.T) {
	for _, c := range []struct {
		in   string
		most int
		want string
	}{
		{"short", 5, "short"},
		{"too long", 6, "too…"},
		{"äöü", 5, "ä…"}, // the cut falls inside nothing
		{"äöü", 4, "…"},  // and here inside the first rune
	} {
		got := Shorten(c.in, c.most)
		if got != c.want || len(got) > c.most || !utf8.ValidString(got) {
			t.Errorf("Shorten(%q, %d) = %q, want %q", c.in, c.most, got, c.want)
		}
	}
}

func TestProblemsAreFoundInWrappedErrors(t *testing.T) {
	wrapped := fmt.Errorf("certificate: %w", Waiting(time.Second, "WaitingForApproval", "request %q", "a"))
	p, ok := AsProblem(wrapped)
	if !ok || p.Reason != "WaitingForApproval" || p.Message != `request "a"` || p.After != time.Second {
		t.Errorf("waiting: %+v, %v", p, ok)
	}
	if p, ok := AsProblem(Stalled("SecretNotOwned", "b")); !ok || p.After != 0 {
		t.Errorf("stalled: %+v, %v", p, ok)
	}
	if _, ok := AsProblem(errors.New("of the moment")); ok {
		t.Error("an ordinary error is no problem of a reason")
	}
}
