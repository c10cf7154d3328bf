package hsmpool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsm"
)

// Observation of a member.
type Observation struct {
	Member string
	State  v1alpha1.HSMMemberState
	// Status is what its hsmd said; zero if it said nothing.
	Status hsm.Status
	// Problem why it is not up.
	Problem *conditions.Problem
}

// Observe asks all members at once. How they are they have to say before they are
// asked again, however long a signature may take.
func Observe(ctx context.Context, members []Member) []Observation {
	ctx, cancel := context.WithTimeout(ctx, lookAgain)
	defer cancel()
	all := make([]Observation, len(members))
	var asked sync.WaitGroup
	for i, m := range members {
		if m.Problem != nil {
			all[i] = Observation{Member: m.Name, State: v1alpha1.HSMMemberUnknown, Problem: m.Problem}
			continue
		}
		asked.Go(func() {
			status, err := m.Client.Status(ctx)
			all[i] = judge(m, status, err)
		})
	}
	asked.Wait()
	return all
}

// judge says what an answer means, and what to do. It is pure.
func judge(m Member, status hsm.Status, err error) Observation {
	o := Observation{Member: m.Name, Status: status, State: status.State}
	var reason, says, remedy string
	switch {
	case err != nil:
		o.State, says = v1alpha1.HSMMemberUnknown, err.Error()
		reason, remedy = unanswered(err)
	case status.State == v1alpha1.HSMMemberUp:
		return o
	case status.State == v1alpha1.HSMMemberStarting:
		reason, says, remedy = v1alpha1.ReasonPending, "it has not reached its token yet", "wait"
	default:
		says = fmt.Sprintf("token %q: %s", status.Token, status.LastError)
		reason, remedy = tokenDown(status, m.in)
	}
	o.Problem = &conditions.Problem{Reason: reason, Message: fmt.Sprintf("member %q: %s; %s", m.Name, says, remedy)}
	return o
}

// unanswered is for a member whose hsmd did not say how its token is.
func unanswered(err error) (reason, remedy string) {
	switch {
	case errors.Is(err, hsm.ErrServerCertificate):
		return v1alpha1.ReasonHSMNotTrusted, "put the authority of the daemon's certificate into ca.crt of its Secret, and a name of the certificate into serverName"
	case errors.Is(err, hsm.ErrClientRefused):
		return v1alpha1.ReasonHSMRefusesAccess, "its client-ca-file has to hold the authority of tls.crt; it has to offer TLS 1.3 with X25519MLKEM768"
	case errors.Is(err, hsm.ErrProtocol):
		return v1alpha1.ReasonHSMProtocol, "address has to be an hsmd's"
	case errors.Is(err, hsm.ErrCutOff):
		return v1alpha1.ReasonHSMUnreachable, "it is ending, many shake hands with it at a time, or no hsmd is there: wait, or correct the address"
	case hsm.CodeOf(err) == hsm.SessionCount:
		return v1alpha1.ReasonHSMUnreachable, "raise connections in its configuration, or have fewer gateways use it"
	case hsm.CodeOf(err) != 0:
		return v1alpha1.ReasonHSMRefusesAccess, "its configuration needs a [client] section for a DNS name of tls.crt, with status among what it may do"
	}
	return v1alpha1.ReasonHSMUnreachable, "let the operator reach its address (DNS, NetworkPolicy), and see that hsmd runs there"
}

// tokenDown is for a token that cannot sign.
func tokenDown(status hsm.Status, in configured) (reason, remedy string) {
	switch status.Code() {
	case hsm.PINIncorrect, hsm.PINInvalid, hsm.PINLenRange:
		return v1alpha1.ReasonPINWrong, "put the token's PIN into " + in.pin + "; it is not tried again before that changes, for tokens lock themselves"
	case hsm.PINLocked:
		return v1alpha1.ReasonPINLocked, "have the token's security officer set a new PIN, and put it into " + in.pin + "; one that is as before is tried again by a new pod alone"
	case hsm.PINExpired, hsm.PINTooWeak:
		return v1alpha1.ReasonPINExpired, "set a new PIN, and put it into " + in.pin
	case hsm.UserPINNotInitialized:
		return v1alpha1.ReasonPINMissing, "have the token's security officer set a PIN, and put it into " + in.pin + "; where it has it already, it is tried again by a new pod alone"
	case hsm.TokenNotPresent, hsm.TokenNotRecognized:
		return v1alpha1.ReasonTokenNotFound, "attach the token, or name it as it is: " + in.token
	case hsm.LibraryLoadFailed:
		return v1alpha1.ReasonLibraryNotLoaded, "name a PKCS #11 library that is there, with all that it needs: " + in.library
	}
	if strings.Contains(status.LastError, "pin-file ") {
		return v1alpha1.ReasonPINMissing, "put the token's PIN into " + in.pin
	}
	return v1alpha1.ReasonTokenFailed, "see to the token; it is tried again all the time"
}
