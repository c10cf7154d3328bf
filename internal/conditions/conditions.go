// Package conditions says in a metav1.Condition how a reconciliation ended.
package conditions

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxMessage is the greatest length of a condition's message, in bytes: well
// below the 32768 that the API allows, for people read it.
const MaxMessage = 4096

// Set writes one condition. Its transition time changes with its status only.
func Set(list *[]metav1.Condition, kind string, status metav1.ConditionStatus, reason, message string, generation int64, now time.Time) {
	c := metav1.Condition{Type: kind, Status: status, Reason: reason, Message: Shorten(message, MaxMessage), ObservedGeneration: generation}
	if old := meta.FindStatusCondition(*list, kind); old == nil || old.Status != status {
		c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	}
	meta.SetStatusCondition(list, c)
}

// Shorten cuts a message at a number of bytes, at a rune's boundary.
func Shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len("…")], "") + "…"
}

// Problem is an error that says what must happen next. Every other error is
// one of the moment: it is tried again, later and later.
type Problem struct {
	// Reason of the condition, from the list in api/v1alpha1.
	Reason string
	// Message names the object, the field, the value found and the remedy.
	Message string
	// After is when to look again; zero when only a change of an object that is
	// watched can help.
	After time.Duration
}

func (p *Problem) Error() string { return p.Message }

// Stalled is a problem that a user must solve: trying again does not help.
func Stalled(reason, format string, args ...any) error {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Waiting is a problem that time may solve.
func Waiting(after time.Duration, reason, format string, args ...any) error {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...), After: after}
}

// AsProblem finds the problem in an error.
func AsProblem(err error) (*Problem, bool) {
	var p *Problem
	return p, errors.As(err, &p)
}
