package embedded

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// User is a role's line in a server's access control list, with more rights.
// Servers see hashes alone; the passwords are random, so that nothing is found
// by guessing.
func (c *Credentials) User(role Role, more ...string) string {
	words := []string{"user", string(role), "reset", "on"}
	if password := c.passwords[role]; password != "" {
		words = append(words, fmt.Sprintf("#%x", sha256.Sum256([]byte(password))))
	}
	return strings.Join(append(append(words, rights[role]), more...), " ")
}
