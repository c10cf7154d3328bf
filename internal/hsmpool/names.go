package hsmpool

import (
	"crypto/sha256"
	"fmt"

	"qtls.dev/qtls/api/v1alpha1"
)

// DaemonPort is where hsmds that the operator runs listen.
const DaemonPort = 7443

// PINKey is the key of a Secret with a token's PIN.
const PINKey = "pin"

// DaemonName of the objects of a member that the operator runs a daemon for:
// StatefulSet, Service and all the others. The name of a StatefulSet has to
// leave room, in a label of 63 characters, for a revision; a hash takes the
// place of what is too much.
func DaemonName(pool, member string) string {
	const most, suffix, hashed = 52, "-hsmd", 9
	name := pool + "-" + member
	if len(name)+len(suffix) > most {
		sum := sha256.Sum256([]byte(name))
		name = fmt.Sprintf("%s-%x", name[:most-len(suffix)-hashed], sum[:4])
	}
	return name + suffix
}

// DaemonHost is the name that the certificate of a member's daemon is for.
func DaemonHost(pool *v1alpha1.HSMPool, member string) string {
	return DaemonName(pool.Name, member) + "." + pool.Namespace + ".svc"
}

// Names of the Secrets of a pool whose daemons the operator runs: its
// authority, and what the operator and the pods of gateways show to the
// daemons.
func AuthoritySecretName(pool string) string { return pool + "-hsm-ca" }
func OperatorSecretName(pool string) string  { return pool + "-hsm-operator" }
func GatewaysSecretName(pool string) string  { return pool + "-hsm-gateways" }

// SoftTokenName of the volume of a member's token in software: its own, or one
// that members share.
func SoftTokenName(pool string, m v1alpha1.HSMMember) string {
	if m.SoftToken.Storage.Shared {
		return pool + "-hsm-token"
	}
	return DaemonName(pool, m.Name)
}

// PINSecretName of the Secret with the PINs of a token in software. It is apart
// from what is renewed: PINs stay as long as the token does.
func PINSecretName(pool string, m v1alpha1.HSMMember) string { return SoftTokenName(pool, m) + "-pin" }
