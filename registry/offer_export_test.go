package registry

// OfferOf is offerOf, for tests.
var OfferOf = offerOf

// IntroductionOf is introductionOf, for tests.
var IntroductionOf = introductionOf
