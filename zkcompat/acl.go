package zkcompat

import (
	"crypto/sha1"
	"encoding/base64"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/barnabas-mq/barnabas/zkcompat/jute"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// Access lists are checked for form, stored and shown, and never enforced: the port is as open as an unsecured
// ZooKeeper. auth is answered as a server without restrictions does, so that clients go on.

// fixACL expands and checks a list as PrepRequestProcessor.fixupACL does.
func (c *conn) fixACL(acl []jute.ACL) ([]jute.ACL, bool) {
	var out []jute.ACL
	add := func(a jute.ACL) {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	for _, a := range acl {
		switch a.Scheme {
		case "world":
			if a.ID != "anyone" {
				return nil, false
			}
			add(a)
		case "auth":
			if len(c.auth) == 0 {
				return nil, false
			}
			for _, known := range c.auth {
				add(jute.ACL{Perms: a.Perms, Scheme: known.Scheme, ID: known.ID})
			}
		case "digest":
			if strings.Count(a.ID, ":") != 1 || strings.HasSuffix(a.ID, ":") {
				return nil, false
			}
			add(a)
		case "ip":
			if !validIP(a.ID) {
				return nil, false
			}
			add(a)
		default:
			return nil, false
		}
	}
	return out, len(out) > 0
}

// validIP accepts an address or address/bits (IPAuthenticationProvider.isValid).
func validIP(s string) bool {
	addr, bits, slash := strings.Cut(s, "/")
	ip, err := netip.ParseAddr(addr)
	if err != nil || !slash {
		return err == nil
	}
	n, err := strconv.Atoi(bits)
	return err == nil && n >= 0 && n <= ip.BitLen()
}

// authenticate takes a digest's name and password; nothing depends on it but what "auth" in a list stands for.
func (c *conn) authenticate(r request) {
	var req jute.AuthRequest
	if err := req.Decode(r.body); err != nil {
		c.malformed(r, err)
		return
	}
	switch req.Scheme {
	case "digest":
		user, _, _ := strings.Cut(string(req.Auth), ":")
		sum := sha1.Sum(req.Auth)
		known := jute.ACL{Scheme: "digest", ID: user + ":" + base64.StdEncoding.EncodeToString(sum[:])}
		if !slices.Contains(c.auth, known) && len(c.auth) < 100 {
			c.auth = append(c.auth, known)
		}
	case "world", "ip":
	default:
		c.warn("an authentication scheme is not known", "scheme", req.Scheme)
		c.reply(r.Xid, jute.AuthFailed)
		c.mu.Lock()
		c.finishLocked()
		c.mu.Unlock()
		return
	}
	c.reply(r.Xid, jute.OK)
}

func wireACL(acl []ztree.ACL) []jute.ACL {
	if len(acl) == 0 {
		return jute.OpenACL
	}
	out := make([]jute.ACL, len(acl))
	for i, a := range acl {
		out[i] = jute.ACL(a)
	}
	return out
}

// hasParent is the first check of a path: it names something below something and has no NUL.
func hasParent(path string) bool {
	return strings.IndexByte(path, '/') >= 0 && strings.IndexByte(path, 0) < 0
}

// validPath is org.apache.zookeeper.common.PathUtils.validatePath.
func validPath(path string) bool {
	if path == "" || path[0] != '/' {
		return false
	}
	if path == "/" {
		return true
	}
	for seg := range strings.SplitSeq(path[1:], "/") {
		if seg == "" || seg == "." || seg == ".." {
			return false
		}
	}
	for _, r := range path {
		if r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 {
			return false
		}
	}
	return true
}
