package haproxy

import (
	"slices"
	"time"

	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
)

// tokenProvider is the OpenSSL provider for keys in HSMs, as the gateway image's
// OpenSSL configuration names it. That activates it nowhere: a gateway that has
// all its keys in Secrets does not load it.
const tokenProvider = "pkcs11"

// handshakeSeconds that a handshake may take.
const handshakeSeconds = 10

// handshakeSecondsWith is that for a handshake whose signature is of an HSM's:
// every member may take its time before the last one signs, and what else the
// handshake does takes some, too.
func handshakeSecondsWith(h *model.HSM) int {
	all := time.Duration(len(h.Members))*h.Timeout + 2*time.Second
	return max(handshakeSeconds, int((all+time.Second-1)/time.Second))
}

// handshakeTime lets handshakes of a bind's frontend wait for HSMs. What has no
// key in one does not.
func (r *renderer) handshakeTime(b bind) {
	inHSM := func(c model.Certificate) bool { return c.HSMPool != "" }
	if r.gateway.HSM == nil || !slices.ContainsFunc(b.certificates, inHSM) {
		return
	}
	if seconds := handshakeSecondsWith(r.gateway.HSM); seconds > handshakeSeconds {
		r.line("    timeout client-hs %ds", seconds)
	}
}

// providers writes which OpenSSL providers are loaded, and which one comes first.
func (r *renderer) providers() {
	t, h := r.gateway.TLS, r.gateway.HSM
	switch {
	case t.Vectorized: // and of the others OpenSSL's own is the first
		r.line("    # The provider's ML-KEM and ML-DSA come before OpenSSL's own.")
		r.line("    ssl-propquery ?provider=%s", algorithms.Provider)
	case h != nil:
		r.line("    # Of what an HSM can do, its private keys alone are wanted.")
		r.line("    ssl-propquery ?provider=default")
	}
	if t.Provider || t.Vectorized {
		r.line("    # Algorithms that OpenSSL lacks, or is slow at. Where one provider is named,")
		r.line("    # OpenSSL's own has to be as well.")
	}
	if t.Provider || t.Vectorized || h != nil {
		r.line("    ssl-provider default")
	}
	if t.Provider || t.Vectorized {
		r.line("    ssl-provider %s", algorithms.Provider)
	}
	if h == nil {
		return
	}
	r.line("    # Private keys that lie in HSMs. While one signs, the thread goes on with")
	r.line("    # other connections.")
	r.line("    ssl-provider %s", tokenProvider)
	r.line("    ssl-mode-async")
	r.revision.HSM = &dataplane.HSM{Pool: r.label(h.Pool), TimeoutMilliseconds: h.Timeout.Milliseconds(), Spread: h.Spread}
	for _, m := range h.Members {
		r.revision.HSM.Members = append(r.revision.HSM.Members, dataplane.HSMMember{
			Name: m.Name, InPod: m.InPod, Address: m.Address, ServerName: m.ServerName, Secret: m.Secret, Sessions: m.Sessions})
	}
}
